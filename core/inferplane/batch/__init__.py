"""OpenAI's batch files, answered by the server's own routes in this process: no port, no HTTP."""
