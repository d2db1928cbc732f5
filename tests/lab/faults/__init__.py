"""Faults made for real on the machines of the lab, and undone: one module for each kind, `table.py` names them all.

What cannot be had for real in containers is made like this. The kernel and its clock are shared by all machines of a
lab: a wrong clock, another processor, an NVIDIA driver and systemd are programs of these names that come first on the
PATH of the node's user; a battery, a lid and a counter of heat are files in a tmpfs over the kernel's own folder. All
else is what it says: packets are dropped by iptables, disks are full, keys are swapped, engines are stopped.
"""
