package integrity

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// Advice for users about faults of output files. findOutputFaults replaces the word ID in the text by the job's
// id.
const (
	lostOutputAdvice    = "lost output exists only in backups; to end this report, remove the job: queuectl rm ID"
	damagedOutputAdvice = "check the disk; " + lostOutputAdvice
)

// ListOutputFiles returns the names of the files in the output directories.
func ListOutputFiles(dirs []string) (map[string]bool, error) {
	files := map[string]bool{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			files[e.Name()] = true
		}
	}
	return files, nil
}

// outputRefsPerQuery is how many names of output files are read per query.
const outputRefsPerQuery = 1000

// EachReferencedOutput calls the callback for every output file that the database refers to, with the file's name and
// its size in bytes.
func EachReferencedOutput(c *sqlitedb.Conn, visit func(ref string, size int64) error) error {
	type output struct {
		seq, n int64
		ref    string
		size   int64
	}
	for last := (output{}); ; {
		list, err := database.ReadRows(c, func(r database.Row) output {
			return output{r.Int64(0), r.Int64(1), r.Text(2), r.Int64(3)}
		}, `SELECT seq, n, output_ref, output_bytes FROM attempts
			WHERE (seq, n) > (?, ?) AND output_ref IS NOT NULL ORDER BY seq, n LIMIT ?`, last.seq, last.n,
			int64(outputRefsPerQuery))
		if err != nil || len(list) == 0 {
			return err
		}
		for _, last = range list {
			if err := visit(last.ref, last.size); err != nil {
				return err
			}
		}
	}
}

// findOutputFile returns the path of an output in the first directory that contains it. If found is false, no
// directory contains the output, and path is where it would be stored.
func findOutputFile(outputDirs []string, fileName string) (path string, found bool) {
	for _, dir := range outputDirs {
		path := filepath.Join(dir, fileName)
		if _, err := os.Lstat(path); err == nil {
			return path, true
		}
	}
	return filepath.Join(outputDirs[0], fileName), false
}

// outputContentFault checks an output file that had expectedBytes bytes when it was written, and returns what is wrong.
// For an intact file, and for a file that has been deleted, it returns the zero fault.
func outputContentFault(path string, expectedBytes int64) fault {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return fault{fmt.Sprintf("%s should be a file with output of the job, but is not a regular file", path),
			"delete it; " + lostOutputAdvice}
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fault{}
	}
	if err != nil {
		return fault{fmt.Sprintf("a file with output of the job cannot be checked: %v", err),
			"give the service's account read access to the file"}
	}
	defer f.Close()
	switch damaged, err := output.CheckFile(f, expectedBytes); {
	case damaged > 0:
		return fault{fmt.Sprintf("the output file %s is damaged: %d bytes of output cannot be read", path, damaged),
			damagedOutputAdvice}
	case errors.Is(err, output.ErrOutputDamaged):
		return fault{fmt.Sprintf("the output file %s is damaged at its end", path), damagedOutputAdvice}
	case err != nil:
		return fault{fmt.Sprintf("a file with output of the job cannot be read: %v", err), damagedOutputAdvice}
	}
	return fault{}
}

// jobIDOfOutput returns the id of the job that an output file belongs to, or the job's number if the id cannot be read.
func jobIDOfOutput(c *sqlitedb.Conn, fileName string) string {
	id, _, _ := strings.Cut(fileName, "-")
	seq, _ := strconv.ParseInt(id, 10, 64)
	// If the query fails, id is still the number.
	database.ScanFirstRow(c, []any{&id}, `SELECT id FROM jobs WHERE seq = ?`, seq)
	return id
}

// findOutputFaults checks that each attempt has its output file, that the contents are intact, and that each file
// belongs to an attempt. A file without an attempt is accepted if its job is leased, if the table garbage
// lists it as a file to delete, or if it may belong to another store.
func findOutputFaults(c *sqlitedb.Conn, existingFiles map[string]bool, outputs store.OutputDirs) (faults []fault,
	err error) {
	orphans := maps.Clone(existingFiles)
	err = EachReferencedOutput(c, func(ref string, size int64) error {
		delete(orphans, ref)
		if size < 0 { // the output was removed to free space
			return nil
		}
		path, there := findOutputFile(outputs.Dirs, ref)
		found := fault{}
		switch {
		case there:
			found = outputContentFault(path, size)
		case !existingFiles[ref]:
			found = fault{fmt.Sprintf("the output file %s is missing", path), lostOutputAdvice}
		}
		if found != (fault{}) {
			id := jobIDOfOutput(c, ref)
			faults = append(faults, fault{"job " + id + ": " + found.message, strings.ReplaceAll(found.advice, "ID", id)})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := database.ForEachRow(c, func(r database.Row) { delete(orphans, r.Text(0)) },
		`SELECT ref FROM garbage UNION ALL SELECT seq || '-' || fence FROM jobs WHERE place = 3`); err != nil {
		return nil, err
	}
	reservations, err := database.ReadLeaseReservations(c)
	if err != nil {
		return nil, err
	}
	for seq, r := range reservations {
		delete(orphans, strconv.FormatInt(seq, 10)+"-"+strconv.FormatInt(r.Fence, 10))
	}
	for name := range orphans {
		path, there := findOutputFile(outputs.Dirs, name)
		if !there {
			continue // the file was deleted after the files were listed
		}
		if info, err := os.Lstat(path); err == nil && info.ModTime().Before(outputs.DirsUsedSince) {
			continue
		}
		faults = append(faults, fault{fmt.Sprintf("the output file %s belongs to no attempt", path), "delete it"})
	}
	return faults, nil
}
