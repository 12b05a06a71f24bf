//go:build !unix

package pgserver

import "os/exec"

func chownToServer(string) error { return nil }

func runAsServer(*exec.Cmd) {}

func quitServer(cmd *exec.Cmd) { cmd.Process.Kill() }

func stopOrContinue(*exec.Cmd, bool) {}
