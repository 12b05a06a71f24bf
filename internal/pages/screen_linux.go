package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// These constants are the lines and columns of the terminal in the picture.
const (
	screenColumns = 92
	screenLines   = 24
)

// exampleScriptByCommand maps the commands of the example jobs to their scripts.
var exampleScriptByCommand = map[string]string{
	"make":    `test "$1" = lint || { echo compiling 61/140; exec sleep 600; }`,
	"train":   "echo epoch 4/10; exec sleep 600",
	"convert": "echo bad header in $1 >&2; exit 1",
}

// exampleQueueCommands lists the arguments of the queuectl commands that create the example queue.
var exampleQueueCommands = [][]string{
	{"enqueue", "--id", "lint", "make lint"},
	{"enqueue", "--id", "97.png", "--max-retries", "0", "convert 97.png 97.webp"},
	{"wait", "--any", "lint"},
	{"wait", "--any", "97.png"},
	{"enqueue", "--id", "build", "make all"},
	{"enqueue", "--id", "train", "train --epochs 10"},
	{"enqueue", "--id", "docs", "make docs"},
	{"enqueue", "--id", "backup", "--in", "7h", "./backup.sh"},
	{"enqueue", "--id", "deploy", "./deploy.sh"},
	{"hold", "deploy"},
}

// captureExampleScreen returns what queuectl prints on a terminal for the example queue, with colours.
func captureExampleScreen() (text string, err error) {
	dir, err := os.MkdirTemp("", "queuectl-pages-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/queuectl", "./cmd/queuectld")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	for name, script := range exampleScriptByCommand {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			return "", err
		}
	}
	queue := filepath.Join(dir, "queue")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(dir, "queuectl"), append([]string{"--dir", queue}, args...)...)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "TZ=UTC", "TERM=xterm-256color",
			"LC_ALL=C.UTF-8"}
		cmd.Dir = dir
		return cmd
	}
	service := command("serve", "--workers", "2")
	if err := service.Start(); err != nil {
		return "", err
	}
	defer func() {
		// Cancel all jobs, so that the service stops without waiting for them.
		command("cancel", "--all", "--yes").Run()
		service.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, service.Wait())
	}()
	for end := time.Now().Add(serviceWaitTimeout); command("whoami").Run() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return "", errors.New("the service does not answer")
		}
	}
	for _, words := range exampleQueueCommands {
		out, err := command(words...).CombinedOutput()
		// Ignore a failure of "queuectl wait", because it exits with the exit code of a job.
		if err != nil && words[0] != "wait" {
			return "", fmt.Errorf("%q: %w: %s", words, err, out)
		}
	}
	for end := time.Now().Add(serviceWaitTimeout); ; time.Sleep(20 * time.Millisecond) {
		text, err := runOnTerminal(command())
		if err != nil || strings.Contains(text, "compiling 61") && strings.Contains(text, "epoch 4") &&
			!strings.Contains(text, "just now") {
			return text, err
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the jobs do not run: %s", text)
		}
	}
}

// serviceWaitTimeout bounds each wait for the service or its jobs.
const serviceWaitTimeout = 20 * time.Second

// runOnTerminal runs a program on a terminal and returns its output.
func runOnTerminal(cmd *exec.Cmd) (string, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	screen := os.NewFile(uintptr(master), "terminal")
	defer screen.Close()
	number, err := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: screenLines, Col: screenColumns}))
	if err != nil {
		return "", err
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer tty.Close()
	cmd.Stdout, cmd.Stderr = tty, tty
	if err := cmd.Start(); err != nil {
		return "", err
	}
	// Close this process's descriptor of the terminal, so that reading ends when the program ends.
	tty.Close()
	raw, _ := io.ReadAll(screen) // reading returns an error when the program has ended, so ignore it
	return strings.ReplaceAll(string(raw), "\r\n", "\n"), cmd.Wait()
}
