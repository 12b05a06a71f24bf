package runner

import (
	"strings"
	"testing"
)

// A request is one line whose words never change, because the program that reads the line may have another version than
// the service that wrote it.
func TestSpawnRequestFormatIsStable(t *testing.T) {
	for line, want := range map[string]SpawnRequest{
		"queuectl wants a runner":                            {},
		"queuectl wants a runner alone":                      {ForIsolatedJob: true},
		"queuectl wants a runner alone as=mail":              {ForIsolatedJob: true, SwitchToAccount: "mail"},
		"queuectl wants a runner tmpdir=/mnt/a tmpdir=b c":   {JobTmpdir: "/mnt/a tmpdir=b c"},
		"queuectl wants a runner alone tmpdir=/mnt as=x":     {ForIsolatedJob: true, JobTmpdir: "/mnt as=x"},
		"queuectl wants a runner end=as-mail/4711.18a2b3c4d": {RunnerDirToKill: "as-mail/4711.18a2b3c4d"},
	} {
		if got := want.String(); got != line {
			t.Errorf("%+v: got the line %q, want %q", want, got, line)
		}
		if got, err := ParseSpawnRequest(line); got != want || err != nil {
			t.Errorf("%q: got %+v, %v, want %+v", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"":                               "does not know the request",
		"queuectl wants a cake":          "does not know the request",
		"queuectl wants a runner please": `unknown word "please"`,
		"queuectl wants a runner end=":   `unknown word "end="`,
	} {
		if got, err := ParseSpawnRequest(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want an error with %q", line, got, err, want)
		}
	}
}
