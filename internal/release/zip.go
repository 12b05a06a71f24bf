package main

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// writeZip prints a directory as a .zip file. All entries have the same date and are sorted by name, so
// the output is reproducible.
func writeZip(out io.Writer, args []string) error {
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
