"""The kernel's edges: one thin function a syscall under the kernel's own name, no policy."""
