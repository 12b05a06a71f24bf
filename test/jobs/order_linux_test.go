package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A single worker starts jobs in rank order. This also holds for jobs that the service sent to the runner in advance
// and took back because an earlier job was still running.
func TestOneWorkerStartsJobsInRankOrder(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	const jobs, runs = 60, 12
	var list, want strings.Builder
	for k := 1; k <= jobs; k++ {
		fmt.Fprintf(&want, "%d\n", k)
		if fmt.Fprintf(&list, "echo %d", k); k%17 == 0 {
			list.WriteString("; sleep 0.06")
		}
		list.WriteByte('\n')
	}
	for range runs {
		p := testrig.NewPrivateQueue(t)
		if err := os.WriteFile(filepath.Join(p.WorkDir, "l"), []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := p.RunPrivate("", "--workers", "1", "--lines", "l"); r.ExitCode != 0 || r.Stdout != want.String() {
			t.Fatalf("exit code %d, printed %q", r.ExitCode, r.Stdout)
		}
	}
}

// A service with one worker starts jobs in the order that the setting scheduling defines, for each value of
// that setting.
func TestOneWorkerFollowsSchedulingSetting(t *testing.T) {
	t.Parallel()
	const jobs, lists = 100, 4
	for _, scheduling := range []string{"fifo", "aging"} {
		t.Run(scheduling, func(t *testing.T) {
			t.Parallel()
			q := testrig.NewHarness(t, "")
			q.StartService("--workers", "1")
			q.MustRunCLI("config", "set", "scheduling", scheduling)
			for n := range lists {
				order := q.Path("order" + strconv.Itoa(n))
				var list strings.Builder
				for k := 1; k <= jobs; k++ {
					if fmt.Fprintf(&list, "echo %d >>%s", k, order); k%17 == 0 {
						list.WriteString("; sleep 0.06")
					}
					list.WriteByte('\n')
				}
				batch := fmt.Sprint("list", n)
				if r := q.RunCLIWithInput(list.String(), "enqueue", "-q", "--batch", batch, "--lines", "-"); r.ExitCode != 0 {
					t.Fatalf("%+v", r)
				}
				q.MustRunCLI("wait", "--batch", batch)
				raw, err := os.ReadFile(order)
				if err != nil {
					t.Fatal(err)
				}
				got := strings.Fields(string(raw))
				if sorted := slices.IsSortedFunc(got, compareNumericTexts); len(got) != jobs || !sorted {
					t.Fatalf("list %d ran as %v", n+1, got)
				}
			}
		})
	}
}

// compareNumericTexts compares two texts by their numeric values.
func compareNumericTexts(a, b string) int {
	i, _ := strconv.Atoi(a)
	j, _ := strconv.Atoi(b)
	return i - j
}
