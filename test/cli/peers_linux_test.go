package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// parallelTool is a tool that runs the commands in a file, four at a time. If the tool is killed, a repeated call with
// the same arguments continues the work.
type parallelTool struct {
	name  string
	args  []string
	stdin string // file for its stdin; "" for none
}

// toolsToCompare returns the tools to be compared, with flags that make a repeated call continue the work.
func toolsToCompare(p *testrig.PrivateQueue) []parallelTool {
	return []parallelTool{
		{"xargs -P4", []string{"xargs", "-P4", "-d", "\n", "-n1", "sh", "-c"}, "commands"},
		{"parallel -j4 --joblog --resume", []string{"parallel", "--will-cite", "-j4", "--joblog", "joblog", "--resume", "-a",
			"commands"}, ""},
		{"queuectl run --private", []string{p.ClientPath, "run", "--private", "--workers", "4", "--lines", "commands"}, ""},
	}
}

// command returns the command that runs the tool.
func (w parallelTool) command(p *testrig.PrivateQueue) *exec.Cmd {
	cmd := exec.Command(w.args[0], w.args[1:]...)
	cmd.Dir = p.WorkDir
	cmd.Env = []string{"HOME=" + p.WorkDir, "PATH=" + os.Getenv("PATH"), "LANG=C", "TMPDIR=" + p.WorkDir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if w.stdin != "" {
		f, err := os.Open(filepath.Join(p.WorkDir, w.stdin))
		if err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { f.Close() })
		cmd.Stdin = f
	}
	return cmd
}

// This test compares a private run with xargs and GNU parallel. Halfway, it kills each tool and all processes of the
// tool, and then starts the tool again. It measures the time and counts the commands that were lost or run again. A
// private run must lose no command, and may run a command again only if that command was running when the tool was
// killed. QUEUECTL_PEERS sets the number of commands.
func TestPrivateRunComparedWithPeers(t *testing.T) {
	t.Parallel()
	skip.UnlessProgram(t, "parallel", "needs GNU parallel; "+
		".ci/run installs it, and TestPrivateRunIsResumed has the promise without peers")
	count := 300
	if n, err := strconv.Atoi(os.Getenv("QUEUECTL_PEERS")); err == nil {
		count = n
	}
	for _, i := range []int{0, 1, 2} {
		p := testrig.NewPrivateQueue(t)
		w := toolsToCompare(p)[i]
		var lines strings.Builder
		for n := range count {
			fmt.Fprintf(&lines, "echo %d >>effects\n", n)
		}
		if err := os.WriteFile(filepath.Join(p.WorkDir, "commands"), []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		if out, err := w.command(p).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", w.name, err, out)
		}
		elapsed := time.Since(started)
		if counts, lines := countJobRuns(p); len(counts) != count || lines != count {
			t.Fatalf("%s ran %d commands, which wrote %d lines", w.name, count, lines)
		}
		for _, name := range []string{"effects", "joblog", ".queuectl"} {
			os.RemoveAll(filepath.Join(p.WorkDir, name))
		}
		cmd := w.command(p)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.WaitUntil("half of the jobs have run", 60*time.Second, func() bool {
			_, lines := countJobRuns(p)
			return lines >= count/2
		})
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		killPrivateRun(p, cmd)
		if out, err := w.command(p).CombinedOutput(); err != nil {
			t.Fatalf("%s, called again: %v\n%s", w.name, err, out)
		}
		counts, effects := countJobRuns(p)
		t.Logf("%-31s %d commands in %v, %.0f/s; killed at half and called again: %d not done, %d done again", w.name, count,
			elapsed.Round(time.Millisecond), float64(count)/elapsed.Seconds(), count-len(counts), effects-len(counts))
		if strings.Contains(w.name, "queuectl") && (len(counts) != count || effects-count > 64) {
			t.Errorf("%s lost %d commands and repeated %d", w.name, count-len(counts), effects-count)
		}
	}
}
