"""What keeps the gate honest: planted faults, and every rung run and watched on the CPU."""
