package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"unicode"
)

// writeLicences prints the licences of Go and of every linked module, because the licences require that
// their text is distributed with the programs.
func writeLicences(out io.Writer, args []string) error {
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	text, err := licenceTexts(args[2])
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "queuectl contains the following components under these licences.\n\n-- Go %s\n\n%s", info.GoVersion,
		text)
	for _, m := range info.Deps {
		m = moduleOrReplacement(m)
		text, err := licenceTexts(filepath.Join(args[1], moduleCacheDir(m)))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "\n-- %s %s\n\n%s", m.Path, m.Version, text); err != nil {
			return err
		}
	}
	return nil
}

// moduleCacheDir returns a module's directory in the module cache. In the names of these directories, "!" and a
// lower-case letter replace each capital letter.
func moduleCacheDir(m *debug.Module) string {
	var b strings.Builder
	for _, r := range m.Path + "@" + m.Version {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// licenceTexts returns the text of all licence files in a directory. A directory without licence files is
// an error.
func licenceTexts(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range files {
		name := strings.ToUpper(f.Name())
		if f.IsDir() || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") &&
			!strings.HasPrefix(name, "COPYING") && !strings.HasPrefix(name, "NOTICE") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return "", err
		}
		b.WriteString(strings.TrimRight(string(raw), "\n") + "\n")
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("%s has no licence", dir)
	}
	return b.String(), nil
}
