package reads_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/sqlite"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// If any bit in the jobs table or the id index is wrong, a lookup of an existing job finds it or returns a
// damage error. It never reports that the job does not exist.
func TestLookupNeverReportsDamageAsNotFound(t *testing.T) {
	for _, jobs := range []int{30, 600} { // with 30 jobs the id index has one page, with 600 several
		dir := t.TempDir()
		ids, roots := createDatabaseOfJobs(t, dir, jobs)
		path := filepath.Join(dir, sqlitedb.DatabaseFileName)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pages := []int{roots["jobs"], roots["jobs_id"]}
		// A page that begins with 2 is an interior page of an index.
		if root := whole[(roots["jobs_id"]-1)*sqlitedb.PageSize:][:sqlitedb.PageSize]; root[0] == 2 {
			first := int(binary.BigEndian.Uint16(root[12:]))
			pages = append(pages[1:], int(binary.BigEndian.Uint32(root[first:])), int(binary.BigEndian.Uint32(root[8:])))
		}
		if (jobs > 100) != (len(pages) == 3) {
			t.Fatalf("%d jobs: pages %v", jobs, pages)
		}
		found, refused := 0, 0
		for _, page := range pages {
			start := (page - 1) * sqlitedb.PageSize
			for at := range sqlitedb.PageSize {
				masks := []byte{1, 2, 4, 8, 16, 0x11, 32, 64, 128}
				if at > 16 { // behind the page header, test only some bytes
					masks = []byte{0x11}
				}
				if at > 16 && at%((jobs/30)*29) != 0 {
					continue
				}
				for _, mask := range masks {
					harmed := slices.Clone(whole)
					harmed[start+at] ^= mask
					if err := os.WriteFile(path, harmed, 0o600); err != nil {
						t.Fatal(err)
					}
					f, r := countLookupResults(t, path, ids, fmt.Sprintf("byte %d of page %d, bits %x", at, page, mask))
					found, refused = found+f, refused+r
				}
			}
		}
		if found == 0 || refused == 0 {
			t.Errorf("%d were found, %d damaged; want some of each", found, refused)
		}
	}
}

// createDatabaseOfJobs creates a database of jobs. The caller has chosen the id of every second job. It returns
// the ids of all jobs, and the numbers of the root pages of the jobs table and of the id index.
func createDatabaseOfJobs(t *testing.T, dir string, jobCount int) (ids []string, rootPages map[string]int) {
	t.Helper()
	s := openStore(t, dir)
	for i := range jobCount {
		id := ""
		if i%2 == 0 {
			id = fmt.Sprintf("job-%d", i)
		}
		got, err := s.Enqueue(t.Context(), store.EnqueueRequest{UID: 1,
			Drafts: []queue.Job{{ID: id, UID: 1, MaxAttempts: 1, ExecutionSettings: queue.ExecutionSettings{Command: "true"}}}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, got.IDs[0])
	}
	rootPages = map[string]int{}
	err := s.RunRead(t.Context(), func(r *reads.ReadSnapshot) error {
		return r.Query(func(r database.Row) (bool, error) {
			rootPages[r.Text(0)] = int(r.Int64(1))
			return true, nil
		}, `SELECT name, rootpage FROM sqlite_schema WHERE name IN ('jobs', 'jobs_id')`)
	})
	if err = errors.Join(err, s.Close()); err != nil || len(rootPages) != 2 {
		t.Fatalf("%v, %v", rootPages, err)
	}
	return ids, rootPages
}

// countLookupResults looks up ids in a damaged database. It counts the lookups that find the job, and those that
// return a damage error. The test fails if a lookup does anything else.
func countLookupResults(t *testing.T, path string, jobIDs []string, description string) (foundCount, damagedCount int) {
	t.Helper()
	c, err := sqlitedb.OpenWithFlags(path, sqlite3.SQLITE_OPEN_READONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, id := range jobIDs {
		if len(jobIDs) > 100 && i%13 > 0 && i < len(jobIDs)-10 {
			continue
		}
		is, err := reads.FindJob(t.Context(), c, id)
		if err == nil && !is {
			err = reads.CheckJobIsMissing(c, id)
		}
		switch {
		case err != nil && sqlitedb.SQLiteErrorIn(err) != nil:
			damagedCount++
		case err != nil || !is:
			t.Errorf("%s: job %s: found %t, %v", description, id, is, err)
		default:
			foundCount++
		}
	}
	return foundCount, damagedCount
}

// An intact index is never reported as damaged, after whatever insertions and deletions.
func TestIntactIndexIsNeverReportedDamaged(t *testing.T) {
	for _, size := range []int{512, 4096, 65_536} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { checkIntactIndexLookups(t, size) })
	}
}

// checkIntactIndexLookups makes random changes to an index with the given page size, and looks up ids that the
// index does not contain.
func checkIntactIndexLookups(t *testing.T, pageSize int) {
	c, err := sqlitedb.Open(":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Exec(fmt.Sprintf(`PRAGMA page_size = %d`, pageSize)); err != nil {
		t.Fatal(err)
	}
	if err := c.Exec(`CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	if err := c.Exec(`CREATE UNIQUE INDEX jobs_id ON jobs (id) WHERE id <> CAST(seq AS TEXT)`); err != nil {
		t.Fatal(err)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	name := func() string { return fmt.Sprintf("%0*d", 1+dice.IntN(120), dice.IntN(5000)) }
	for step := range 20_000 {
		statement, arg := `INSERT OR IGNORE INTO jobs (id) VALUES (?)`, name()
		if step%12_000 > 7000 && dice.IntN(8) > 0 || dice.IntN(3) == 0 {
			statement = `DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs INDEXED BY jobs_id
				WHERE id >= ? AND id <> CAST(seq AS TEXT) ORDER BY id LIMIT 2)`
		}
		if err := c.Exec(statement, arg); err != nil {
			t.Fatal(err)
		}
		if step%3 == 0 {
			missing := name() + "-"
			if err := reads.CheckJobIsMissing(c, missing); err != nil {
				t.Fatalf("step %d, id %q: %v", step, missing, err)
			}
		}
	}
}

// An entry of the id index whose row is missing is damage, even if the id of the entry is empty. An id that cannot be
// read looks like an empty one.
func TestIndexEntryWithoutRowIsReportedDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	c, err := sqlitedb.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(c.Exec(`CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT NOT NULL)`),
		c.Exec(`CREATE UNIQUE INDEX jobs_id ON jobs (id) WHERE id <> CAST(seq AS TEXT)`),
		c.Exec(`INSERT INTO jobs (seq, id) VALUES (100, '')`))
	for i := range 40 { // enough that the search for the missing id below does not read the page with the empty id
		err = errors.Join(err, c.Exec(`INSERT INTO jobs (seq, id) VALUES (?, ?)`, i+1, fmt.Sprintf("%0128d", i)))
	}
	if err = errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Change the seq in the index entry of the empty id from 100 to 101.
	harmed := bytes.Replace(file, []byte{3, 13, 1, 100}, []byte{3, 13, 1, 101}, 1)
	if err := os.WriteFile(path, harmed, 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = sqlitedb.OpenWithFlags(path, sqlite3.SQLITE_OPEN_READONLY); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := reads.CheckJobIsMissing(c, "x"); sqlitedb.SQLiteErrorIn(err) == nil {
		t.Errorf("got %v, want a damage error", err)
	}
}

// The lookup of a job that does not exist returns ErrNotFound, whatever the id looks like.
func TestLookupOfMissingJobReturnsErrNotFound(t *testing.T) {
	s := openStore(t, t.TempDir())
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{UID: 1,
		Drafts: []queue.Job{{ID: "m", UID: 1}, {UID: 1}}}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "3", "a", "z", "", "m ", "0", "-1"} {
		if _, err := s.GetJob(t.Context(), id); !errors.Is(err, queue.ErrNotFound) {
			t.Errorf("job %q: %v, want %v", id, err, queue.ErrNotFound)
		}
	}
}

func openStore(t *testing.T, dir string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir,
		RankOrder: queue.RankPolicy{Scheduling: queue.SchedulingByPriority}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
