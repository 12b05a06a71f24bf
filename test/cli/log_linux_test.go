package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// Log lines for systemd's journal contain their priority, and no time, because the journal adds the
// time.
func TestJournalLogHasPriorityButNoTime(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	out, err := os.Create(q.Path("journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(out.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	cmd := q.CLICommand("serve", "--workers", "1")
	cmd.Env = append(cmd.Env, fmt.Sprintf("JOURNAL_STREAM=%d:%d", st.Dev, st.Ino))
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	q.WaitUntil("it is ready", 20*time.Second, func() bool { return strings.Contains(q.ReadFile("journal"), "ready on") })
	q.RunCLI("run", "--id", "bad", "--max-retries", "0", "exit 3")
	q.MustRunCLI("config", "set", "priority", "4")
	q.MustRunCLI("service", "stop")
	cmd.Wait()
	for _, want := range []string{"\n<4>msg=\"job is dead\" job=bad attempt=1 ", "\n<6>msg=request method=config.set "} {
		if !strings.Contains("\n"+q.ReadFile("journal"), want) {
			t.Errorf("the journal lacks %q:\n%s", want, q.ReadFile("journal"))
		}
	}
}
