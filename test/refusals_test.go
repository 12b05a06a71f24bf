//go:build linux || windows

package test

import (
	"encoding/json"
	"strings"
	"testing"
)

// A refusal of one job names the flag that was typed; JSON names the field, apart from the message.
func TestRefusedEditNamesTheFlag(t *testing.T) {
	q := serving(t, "--workers", "0")
	q.must("enqueue", "--id", "a", "--unique", "k", "true")
	q.must("enqueue", "--id", "b", "true")
	q.must("enqueue", "--id", "c", "true")
	const taken = `"k" is the key of job a`
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"b", "--unique", "k"}, "queuectl: --unique: " + taken + "\n"},
		{[]string{"b", `{"unique":"k"}`}, "queuectl: unique: " + taken + "\n"},
		{[]string{"b", "c", "--unique", "k"}, "queuectl: --unique: " + taken + "; refused for b, c\n"},
	} {
		if r := q.cli(append([]string{"edit"}, c.args...)...); r.code != 5 || r.err != c.want {
			t.Errorf("edit %q: %+v, want 5, %q", c.args, r, c.want)
		}
	}
	var got struct {
		Refused []struct{ ID, Code, Field, Message string }
	}
	r := q.cli("edit", "b", "--unique", "k", "--json")
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || len(got.Refused) != 1 {
		t.Fatalf("%+v: %v", r, err)
	}
	if f := got.Refused[0]; f.ID != "b" || f.Code != "exists" || f.Field != "unique" || f.Message != taken {
		t.Errorf("got %+v", f)
	}
	if r := q.cli("edit", "b", "--on", "nope"); r.code != 2 || !strings.HasPrefix(r.err, "queuectl: --on: ") {
		t.Errorf("edit --on nope: %+v", r)
	}
}
