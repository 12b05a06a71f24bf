package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// repositoryURL is the base URL for links whose target is not installed.
const repositoryURL = "https://github.com/queuectl/queuectl/blob/main/"

// markdownLinkPattern matches the target of a link in Markdown: [text](target).
var markdownLinkPattern = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// copyDocs copies pages and data files of the repository into a directory. Its arguments are LAYOUT DIR and
// the files, as paths in the repository. If LAYOUT is "flat", all files are directly in DIR. If it is "tree",
// they keep their directories.
//
// copyDocs changes each link so that it leads to the copy of its target or, if the target is not copied, to
// the repository. A link to a file that the repository does not have is an error.
func copyDocs(_ io.Writer, args []string) error {
	layout, dir, files := args[0], args[1], args[2:]
	installed := map[string]string{} // the installed path of each file, by its path in the repository
	for _, file := range files {
		file = path.Clean(filepath.ToSlash(file))
		installed[file] = file
		if layout == "flat" {
			installed[file] = path.Base(file)
		}
	}
	for file, to := range installed {
		raw, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			return err
		}
		if path.Ext(file) == ".md" {
			text, err := rewriteLinks(string(raw), file, installed)
			if err != nil {
				return err
			}
			raw = []byte(text)
		}
		out := filepath.Join(dir, filepath.FromSlash(to))
		if err := errors.Join(os.MkdirAll(filepath.Dir(out), 0o755), os.WriteFile(out, raw, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// rewriteLinks returns a page whose relative links lead to installed files. A link to a file that is not installed
// leads to the repository instead.
func rewriteLinks(pageText, pagePath string, installedPaths map[string]string) (string, error) {
	var missingErr error
	pageText = markdownLinkPattern.ReplaceAllStringFunc(pageText, func(match string) string {
		target, fragment, _ := strings.Cut(match[2:len(match)-1], "#")
		if target == "" || strings.Contains(target, ":") {
			return match // keep a link within the page, and a link to another site
		}
		file := path.Join(path.Dir(pagePath), target)
		if _, err := os.Stat(filepath.FromSlash(file)); errors.Is(err, fs.ErrNotExist) {
			missingErr = fmt.Errorf("%s: the link target %s does not exist", pagePath, target)
		}
		to := repositoryURL + file
		if at, found := installedPaths[file]; found {
			rel, _ := filepath.Rel(filepath.FromSlash(path.Dir(installedPaths[pagePath])), filepath.FromSlash(at))
			to = filepath.ToSlash(rel)
		}
		if fragment != "" {
			to += "#" + fragment
		}
		return "](" + to + ")"
	})
	return pageText, missingErr
}
