//go:build !unix

package pgserver

import "os/exec"

// The functions in this file are never called, because pgserver.New skips the tests on this system.
func chownToServerAccount(string) error { return nil }

func runAsServerAccount(*exec.Cmd) {}

func quitServerImmediately(cmd *exec.Cmd) { cmd.Process.Kill() }

func setServerFrozen(*exec.Cmd, bool) {}
