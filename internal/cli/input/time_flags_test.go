package input

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A flag for a time rejects times that the protocol cannot represent. The error repeats the value as the user wrote it.
// The first moment of 1970 is one of these times: as the zero value, it would mean that the flag is not given.
func TestTimeFlagsRejectTimesOutOfRange(t *testing.T) {
	var past, future control.Time
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	PastTimeVar(f, &past, "until", "")
	FutureTimeVar(f, &future, "resume-at", "")
	var spec queue.Spec
	f.Var(NewFieldFlag(&spec, "run_at"), "at", "")
	f.Var(NewFieldFlag(&spec, "expires_at"), "expires-at", "")
	for _, flag := range []string{"until", "resume-at", "at", "expires-at"} {
		for _, text := range []string{"1970-01-01T00:00:00Z", "1969-06-01T00:00:00Z", "9999-12-31T23:59:59-01:00"} {
			err, want := f.Set(flag, text), `"`+text+`" is out of range; use a time after 1970`
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("--%s %q: got %v, want %s…", flag, text, err, want)
			}
		}
		if err := f.Set(flag, "1970-01-01T00:00:01Z"); err != nil {
			t.Errorf("--%s: the first second of 1970 is rejected: %v", flag, err)
		}
	}
}
