package main

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// pack prints a folder as a .zip whose files are all of one date, in the order of
// their names.
func pack(out io.Writer, args []string) error {
	date, err := time.Parse(time.RFC3339, args[1])
	if err != nil {
		return err
	}
	z := zip.NewWriter(out)
	err = filepath.WalkDir(args[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(args[0], path)
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: filepath.ToSlash(name), Method: zip.Deflate, Modified: date.UTC()})
		if err != nil {
			return err
		}
		_, err = w.Write(raw)
		return err
	})
	if err != nil {
		return err
	}
	return z.Close()
}
