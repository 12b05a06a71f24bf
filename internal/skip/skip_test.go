package skip

import (
	"runtime"
	"strings"
	"testing"
)

// skipRecorder is a fake test that records how it ends.
type skipRecorder struct {
	testing.TB
	skipMessage, failMessage string
}

func (r *skipRecorder) Helper() {}

func (r *skipRecorder) Skip(args ...any) {
	r.skipMessage = args[0].(string)
	runtime.Goexit()
}

func (r *skipRecorder) Fatalf(format string, args ...any) {
	r.failMessage = format
	runtime.Goexit()
}

// A missing requirement skips a test. If QUEUECTL_REQUIRE lists the requirement, it fails the test instead.
func TestMissingRequirementFailsInsteadOfSkipping(t *testing.T) {
	end := func(required string) *skipRecorder {
		t.Setenv(requirementsVariable, required)
		r, done := &skipRecorder{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			UnlessProgram(r, "no-such-program", "needs a program; another test covers it")
		}()
		<-done
		return r
	}
	for _, required := range []string{"", "root", "root,no-such"} {
		if r := end(required); r.failMessage != "" || !strings.HasPrefix(r.skipMessage, "skipped: needs a program;") {
			t.Errorf("required %q: got %+v, want a skip", required, r)
		}
	}
	for _, required := range []string{"no-such-program", "root,no-such-program"} {
		if r := end(required); r.failMessage == "" || r.skipMessage != "" {
			t.Errorf("required %q: got %+v, want a failure", required, r)
		}
	}
}
