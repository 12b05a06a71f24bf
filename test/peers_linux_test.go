package test

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
)

// peer is a way to run a file of commands, four at once, that can be called again
// after it was killed.
type peer struct {
	name string
	args []string
	in   string // the file that it has as standard input, "" for none
}

// peers are what people use for this, with what each has for going on.
func (p *private) peers() []peer {
	return []peer{
		{"xargs -P4", []string{"xargs", "-P4", "-d", "\n", "-n1", "sh", "-c"}, "commands"},
		{"parallel -j4 --joblog --resume", []string{"parallel", "--will-cite", "-j4", "--joblog", "joblog", "--resume", "-a", "commands"}, ""},
		{"queuectl run --private", []string{p.bin, "run", "--private", "--workers", "4", "--lines", "commands"}, ""},
	}
}

func (w peer) command(p *private) *exec.Cmd {
	cmd := exec.Command(w.args[0], w.args[1:]...)
	cmd.Dir = p.work
	cmd.Env = []string{"HOME=" + p.work, "PATH=" + os.Getenv("PATH"), "LANG=C", "TMPDIR=" + p.work}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if w.in != "" {
		f, err := os.Open(filepath.Join(p.work, w.in))
		if err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { f.Close() })
		cmd.Stdin = f
	}
	return cmd
}

// A private run beside xargs and GNU parallel, in one run: the time that each takes,
// and what each does when it was killed at half with all it had started and is called
// again. Ours loses nothing and does again what ran at the time alone.
// QUEUECTL_PEERS is the number of commands.
func TestPrivateBesidePeers(t *testing.T) {
	t.Parallel()
	needs(t, "parallel")
	count := 300
	if n, err := strconv.Atoi(os.Getenv("QUEUECTL_PEERS")); err == nil {
		count = n
	}
	for _, i := range []int{0, 1, 2} {
		p := newPrivate(t)
		w := p.peers()[i]
		var lines strings.Builder
		for n := range count {
			fmt.Fprintf(&lines, "echo %d >>effects\n", n)
		}
		if err := os.WriteFile(filepath.Join(p.work, "commands"), []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if out, err := w.command(p).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", w.name, err, out)
		}
		took := time.Since(began)
		if counts, lines := p.effects(); len(counts) != count || lines != count {
			t.Fatalf("%s: %d commands had %d effects", w.name, count, lines)
		}
		for _, name := range []string{"effects", "joblog", ".queuectl"} {
			os.RemoveAll(filepath.Join(p.work, name))
		}
		cmd := w.command(p)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.until("half of it", 60*time.Second, func() bool {
			_, lines := p.effects()
			return lines >= count/2
		})
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		p.killAll(cmd)
		if out, err := w.command(p).CombinedOutput(); err != nil {
			t.Fatalf("%s again: %v\n%s", w.name, err, out)
		}
		counts, effects := p.effects()
		t.Logf("%-31s %d commands in %v, %.0f/s; killed at half and called again: %d not done, %d done again", w.name, count, took.Round(time.Millisecond), float64(count)/took.Seconds(), count-len(counts), effects-len(counts))
		if strings.Contains(w.name, "queuectl") && (len(counts) != count || effects-count > 64) {
			t.Errorf("%s lost %d and did %d again", w.name, count-len(counts), effects-count)
		}
	}
}
