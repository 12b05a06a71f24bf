package process

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf16"
)

// commandEnvironment returns a command's environment, with the cookie, sorted by name. If a name occurs several times,
// ignoring case, the last variable counts. If env lacks variables that every program on Windows needs,
// commandEnvironment copies them from this process.
func commandEnvironment(env []string, cookie string) []string {
	last := map[string]string{}
	name := func(e string) string {
		// The names of some variables begin with =: they contain the current directory of a drive.
		n, _, _ := strings.Cut(e[min(1, len(e)):], "=")
		return strings.ToUpper(e[:min(1, len(e))] + n)
	}
	for _, n := range []string{"SystemRoot", "SystemDrive", "windir", "ComSpec", "PATHEXT", "TEMP", "TMP"} {
		if v := os.Getenv(n); v != "" {
			last[strings.ToUpper(n)] = n + "=" + v
		}
	}
	for _, e := range append(slices.Clone(env), CookieEnvVar+"="+cookie) {
		if strings.Contains(e[min(1, len(e)):], "=") {
			last[name(e)] = e
		}
	}
	return slices.SortedFunc(maps.Values(last), func(a, b string) int { return strings.Compare(name(a), name(b)) })
}

// encodeEnvBlock encodes an environment in the form that CreateProcess needs.
func encodeEnvBlock(env []string) ([]uint16, error) {
	var block []uint16
	for _, e := range env {
		if strings.ContainsRune(e, 0) {
			return nil, fmt.Errorf("the environment variable %q contains a NUL byte; remove that byte",
				e[:strings.Index(e[1:], "=")+1])
		}
		block = append(append(block, utf16.Encode([]rune(e))...), 0)
	}
	return append(block, 0), nil
}

// envVarValue returns the value of a variable in an environment.
func envVarValue(env []string, name string) string {
	for _, e := range env {
		if n, v, _ := strings.Cut(e, "="); strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}

// findProgram returns the path of a program. If name contains a path, it is relative to dir, the command's
// working directory. Otherwise findProgram searches the command's PATH, but not dir.
func findProgram(name string, env []string, dir string) (string, error) {
	endings := filepath.SplitList(envVarValue(env, "PATHEXT"))
	if len(endings) == 0 {
		endings = []string{".COM", ".EXE", ".BAT", ".CMD"}
	}
	if strings.ContainsAny(name, `\/:`) {
		path := resolvePathIn(dir, name)
		if found := findProgramFile(path, endings); found != "" {
			return found, nil
		}
		return "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	for _, entry := range filepath.SplitList(envVarValue(env, "PATH")) {
		if entry == "" {
			continue
		}
		if found := findProgramFile(resolvePathIn(dir, entry)+`\`+name, endings); found != "" {
			return found, nil
		}
	}
	return "", fmt.Errorf("%w in PATH", fs.ErrNotExist)
}

// resolvePathIn resolves a path relative to dir.
func resolvePathIn(dir, path string) string {
	switch {
	case dir == "" || filepath.VolumeName(path) != "":
		return path
	case os.IsPathSeparator(path[0]):
		return filepath.VolumeName(dir) + path
	}
	return filepath.Join(dir, path)
}

// findProgramFile returns the path of an existing program: path itself if it has an extension, or path with one of
// the extensions. It returns "" if no such file exists.
func findProgramFile(path string, extensions []string) string {
	if filepath.Ext(path) != "" {
		extensions = append([]string{""}, extensions...)
	}
	for _, e := range extensions {
		if info, err := os.Stat(path + e); err == nil && !info.IsDir() {
			return path + e
		}
	}
	return ""
}
