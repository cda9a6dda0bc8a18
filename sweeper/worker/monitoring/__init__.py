"""What else goes on beside the measurement: the GPU, the host, torch's flags."""
