package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"testing"
	"time"
)

// The changelog lists the changes in the section Unreleased under the version of the build, and other changes
// under their own version. If the section Unreleased is empty, the newest section gets the version of the
// build.
func TestChangelogBeginsWithVersionOfBuild(t *testing.T) {
	for unreleased, want := range map[string][]changelogSection{
		"### Added\n\nJobs\n\n- One thing.\n- Another.\n\n": {
			{"0.2.0-1", "2026-12-24T10:00:00Z", []string{"One thing.", "Another."}},
			{"0.1.0", "2026-11-22T00:00:00Z", []string{"The first."}},
		},
		"": {{"0.2.0-1", "2026-12-24T10:00:00Z", []string{"The first."}}},
	} {
		text := "# Changelog\n\n## [Unreleased]\n\n" + unreleased + "## [0.1.0] - 2026-11-22\n\n- The first.\n"
		got, err := parseChangelog(text, "0.2.0-1", "2026-12-24T10:00:00Z")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}

// A released section without a date is an error, and so is a changelog without changes.
func TestChangelogWithoutDateOrChangesIsRefused(t *testing.T) {
	for _, text := range []string{"## [Unreleased]\n\n## [0.1.0]\n", "- Nothing.\n", "## [Unreleased]\n"} {
		if got, err := parseChangelog(text, "0.2.0-1", ""); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

// The release notes are the changelog section of the version. If the version has no section, they are the section
// Unreleased.
func TestReleaseNotesContainVersionsSection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "CHANGELOG.md")
	text := "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.2.0] - 2026-11-28\n\n### Added\n\n- Old.\n\n## [0.1.0] - " +
		"2026-11-22\n\n- Older.\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{"0.2.0": "### Added\n\n- Old.\n", "0.1.0": "- Older.\n",
		"0.2.0+1.gabc": "- New.\n"} {
		var out bytes.Buffer
		if err := writeReleaseNotes(&out, []string{file, version}); err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v, want %q", version, out.String(), err, want)
		}
	}
}

// In the module cache, "!" and a small letter replace each capital in the path of a module. If go.mod
// replaces a module, the bill of materials lists the replacement instead.
func TestModulePathsAreEscapedAndReplaced(t *testing.T) {
	m := &debug.Module{Path: "github.com/BurntSushi/toml", Version: "v1.6.0", Sum: "h1:abc="}
	if got, want := moduleCacheDir(m), "github.com/!burnt!sushi/toml@v1.6.0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	purl := "pkg:golang/github.com/BurntSushi/toml@v1.6.0"
	want := bomComponent{Type: "library", BOMRef: purl, Name: m.Path, Version: m.Version, PackageURL: purl,
		Properties: []componentProperty{{"go:sum", m.Sum}}}
	old := &debug.Module{Path: "example.org/old", Version: "v1.0.0", Replace: m}
	if got := moduleComponent(old); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The content of the .zip does not depend on the time or the directory in which its files were created.
func TestZipIsReproducible(t *testing.T) {
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
		if err := writeZip(&out, []string{dir, "2026-11-22T08:00:00Z"}); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	now, before := made(0), made(time.Hour)
	if !bytes.Equal(now, before) {
		t.Error("files with later times produce another .zip")
	}
	z, err := zip.NewReader(bytes.NewReader(now), int64(len(now)))
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := fs.ReadFile(z, "docs/a.md"); string(raw) != "docs/a.md" || err != nil {
		t.Errorf("got %q, %v, want what was packed", raw, err)
	}
}

// licenceIDsInText recognises a licence by a sentence that no other licence contains.
func TestLicenceIsIdentifiedBySentence(t *testing.T) {
	const bsd = "Redistribution and use in source\nand binary forms, with or without modification, are permitted"
	for _, c := range []struct {
		text string
		want []string
	}{
		{"Apache License\n   Version 2.0, January 2004", []string{"Apache-2.0"}},
		{"Permission is hereby granted, free of charge, to any\nperson obtaining a copy", []string{"MIT"}},
		{bsd, []string{"BSD-2-Clause"}},
		{bsd + " Neither the name may be\nused to endorse or promote products", []string{"BSD-3-Clause"}},
		{"Do what you want.", nil},
	} {
		if got := licenceIDsInText(c.text); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got %v, want %v", c.text, got, c.want)
		}
	}
}

// The bill of materials contains this test program, Go and every linked module, each with a licence.
func TestBOMListsLicenceOfEveryComponent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	goroot := t.TempDir()
	if err := os.WriteFile(filepath.Join(goroot, "LICENSE"), []byte("Redistribution and use in source and binary forms"),
		0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeBOM(&out, []string{"1.2.3", "2026-11-22T08:00:00Z", "", goroot, self, self}); err != nil {
		t.Fatal(err)
	}
	var b billOfMaterials
	if err := json.Unmarshal(out.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	if programs := b.Metadata.DescribedComponent.Subcomponents; len(programs) != 2 || len(programs[0].Hashes) != 1 {
		t.Errorf("programs: got %v, want two with their hashes", programs)
	}
	if len(b.Components) != 1 || b.Components[0].Name != "std" ||
		!reflect.DeepEqual(b.Components[0].Licences, spdxLicences("BSD-2-Clause")) {
		t.Errorf("components: got %v, want the standard library with its licence", b.Components)
	}
}

// A link on an installed page leads to the installed copy of its target, or to the repository if the target is
// not installed.
func TestLinksLeadToInstalledPageOrRepository(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, file := range []string{"docs/a.md", "docs/b.md", "x.toml", "law.go"} {
		if err := errors.Join(os.MkdirAll("docs", 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const page = "[b](b.md#part) [x](../x.toml) [law](../law.go) [here](#top) [web](https://example.org/a.md)"
	for layout, want := range map[string]string{
		"flat": "[b](b.md#part) [x](x.toml) [law](" + repositoryURL + "law.go) [here](#top) [web](https://example.org/a.md)",
		"tree": "[b](b.md#part) [x](../x.toml) [law](" + repositoryURL + "law.go) [here](#top) " +
			"[web](https://example.org/a.md)",
	} {
		if err := os.WriteFile("docs/a.md", []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := copyDocs(nil, []string{layout, layout, "docs/a.md", "docs/b.md", "x.toml"}); err != nil {
			t.Fatal(err)
		}
		file := map[string]string{"flat": "flat/a.md", "tree": "tree/docs/a.md"}[layout]
		if raw, err := os.ReadFile(file); string(raw) != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", layout, raw, err, want)
		}
	}
	if err := os.WriteFile("docs/a.md", []byte("[gone](gone.md)"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyDocs(nil, []string{"flat", "out", "docs/a.md"}); err == nil {
		t.Error("a link without a target was accepted")
	}
}
