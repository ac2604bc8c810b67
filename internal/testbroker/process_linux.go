package testbroker

import (
	"os"
	"syscall"
)

// endWithParent lets the kernel end a process when ours is killed, so that a test that times out leaves no node behind.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGTERM }

// prefer gives the processes of a group the processors before others, where we may. On a loaded machine a node else takes longer than the 5 s that
// RabbitMQ 3.10 allows itself to form a quorum queue, and one that it gives up can stop the dead-lettering of all others on the node for good
// (https://github.com/rabbitmq/rabbitmq-server/issues/16652).
func prefer(group int) {
	const niceness = -10
	_ = syscall.Setpriority(syscall.PRIO_PGRP, group, niceness)
}

const (
	sharedMemory = "/dev/shm"
	tmpfsMagic   = 0x01021994 // statfs(2)
	enoughMemory = 4 << 30
)

// inMemory is a folder in memory with room for the states of several nodes, so that tests beside each other do not wait for the disk
// with each declaration; empty where there is none, or TMPDIR names a folder.
func inMemory() string {
	var at syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(sharedMemory, &at) != nil || at.Type != tmpfsMagic {
		return ""
	}
	if at.Bavail*uint64(at.Bsize) < enoughMemory { //nolint:gosec // a size of blocks is positive
		return ""
	}
	return sharedMemory
}
