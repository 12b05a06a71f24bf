package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Flags that were changed are named as they are typed; from a note that a power cut has emptied, or
// that is anything else, nothing is told.
func TestChangedFlagsAreNamed(t *testing.T) {
	a := &App{Dir: t.TempDir(), Err: os.Stderr, raw: true}
	p := &private{a: a, salt: []byte(`[{"ok_codes":[0,3],"timeout":"20s"},true,null]`)}
	for note, want := range map[string][]string{
		`[{"timeout":"10s","labels":{"a":"b"}},false,["gzip","{}"]]`: {
			`--label was {"a":"b"}, is not given now`, `--lines was not given, is given now`, `--ok-code was not given, is [0,3] now`,
			`--timeout was 10s, is 20s now`, `the program was gzip {}, is not given now`},
		`[{"ok_codes":[0,3],"timeout":"20s"},true,null]`: nil,
		``: nil, `{`: nil, `[]`: nil, `[null,null]`: nil, `[1,2,3]`: nil, `[{},true,null,4]`: nil,
	} {
		if err := os.WriteFile(filepath.Join(a.Dir, noteName), []byte(note), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := p.changedFlags(); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", note, got, want)
		}
	}
}
