"""What bench/vs_torch is made of: Motley and PyTorch measured in turn on one machine."""
