package control

import "testing"

// The log shows an invalid id in quotes and without control characters, which a terminal would interpret.
func TestLogQuotesInvalidJobIDs(t *testing.T) {
	for id, want := range map[string]string{"a-1.b": "a-1.b", "x\n\u202e\u009b31m": `"x\n\u202e\u009b31m"`} {
		if got := loggableJobID(id); got != want {
			t.Errorf("%q is logged as %s, want %s", id, got, want)
		}
	}
}
