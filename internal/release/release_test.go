package main

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"testing"
	"time"
)

// What is not released belongs to the version that is built; older ones keep theirs.
func TestChangelogBeginsWithTheVersionThatIsBuilt(t *testing.T) {
	text := "# Changelog\n\n## Unreleased\n\n- One thing.\n- Another.\n\n## 0.1.0, 2026-11-22\n\n- The first.\n"
	got, err := readChangelog(text, "0.2.0-1", "2026-12-24T10:00:00Z")
	want := []entry{
		{"0.2.0-1", "2026-12-24T10:00:00Z", []string{"One thing.", "Another."}},
		{"0.1.0", "2026-11-22T00:00:00Z", []string{"The first."}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// A released section without its date, and a changelog without sections, are errors.
func TestChangelogThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"## Unreleased\n\n## 0.1.0\n", "- Nothing.\n"} {
		if got, err := readChangelog(text, "0.2.0-1", ""); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

// A module in the cache has capitals as !small; what is replaced is named by what
// replaces it.
func TestModules(t *testing.T) {
	m := &debug.Module{Path: "github.com/BurntSushi/toml", Version: "v1.6.0", Sum: "h1:abc="}
	if got, want := escaped(m), "github.com/!burnt!sushi/toml@v1.6.0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	purl := "pkg:golang/github.com/BurntSushi/toml@v1.6.0"
	want := component{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl, Properties: []property{{"go:sum", m.Sum}}}
	if got := module(&debug.Module{Path: "example.org/old", Version: "v1.0.0", Replace: m}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A .zip tells nothing of when and where its files were made.
func TestZipIsTheSameAgain(t *testing.T) {
	made := func(age time.Duration) []byte {
		dir := t.TempDir()
		for _, name := range []string{"b.txt", "docs/a.md"} {
			path := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
			if at := time.Now().Add(-age); os.Chtimes(path, at, at) != nil {
				t.Fatal("the time of a file cannot be set")
			}
		}
		var out bytes.Buffer
		if err := pack(&out, []string{dir, "2026-11-22T08:00:00Z"}); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	now, before := made(0), made(time.Hour)
	if !bytes.Equal(now, before) {
		t.Error("younger files give another .zip")
	}
	z, err := zip.NewReader(bytes.NewReader(now), int64(len(now)))
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := fs.ReadFile(z, "docs/a.md"); string(raw) != "docs/a.md" || err != nil {
		t.Errorf("got %q, %v, want what was packed", raw, err)
	}
}
