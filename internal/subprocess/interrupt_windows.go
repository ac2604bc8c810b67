package subprocess

func interruptGroup(int) {}
