"""An example vendor plugin: a platform on a simulated device with static shapes."""
