"""Libraries of the CPU target for Arm processors, run in qemu on a machine with another one."""
