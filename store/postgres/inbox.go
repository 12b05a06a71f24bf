package postgres

import (
	"context"
	"crypto/md5"
	"fmt"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/reads"
)

// maxRejectedSpecChars is how many characters of the spec of a rejected submission are kept.
const maxRejectedSpecChars = 4 << 10

// SetAcceptedDatabaseRoles implements store.Inbox. It sets the PostgreSQL roles whose submissions this service accepts.
func (s *Store) SetAcceptedDatabaseRoles(ctx context.Context, roles []string) error {
	return s.RunAndCommit(ctx, engine.PromptClass, func(t *engine.Tx) error {
		if err := t.Exec(`DELETE FROM roles WHERE node = ?`, s.NodeNumber()); err != nil {
			return err
		}
		for _, role := range roles {
			if err := createSubmittedUnitsSequence(t, role); err != nil {
				return err
			}
			if err := t.Exec(`INSERT INTO roles (node, role) VALUES (?, ?)`, s.NodeNumber(), role); err != nil {
				return err
			}
		}
		return nil
	})
}

// createSubmittedUnitsSequence creates the sequence that counts the units which a role has submitted. It first
// checks that the sequence is missing, because the role of the service may not have the privilege to create
// objects.
func createSubmittedUnitsSequence(t *engine.Tx, role string) error {
	sequence := fmt.Sprintf("%s.%s%x", pgdb.SchemaName, pgdb.SubmittedUnitsSequencePrefix, md5.Sum([]byte(role)))
	missing, err := t.QueryNumber(`SELECT (to_regclass(?) IS NULL)::int`, sequence)
	if err != nil || missing == 0 {
		return err
	}
	allowed, err := t.QueryNumber(`SELECT has_schema_privilege('` + pgdb.SchemaName + `', 'CREATE')::int`)
	if err != nil {
		return err
	}
	if allowed == 0 {
		return queue.Errorf(queue.CodeDenied, "store_roles: the role %q needs a sequence that this service's "+
			"database role may not create; start the service once with the role that owns the database",
			queue.ClipForMessage(role))
	}
	return t.Exec(`CREATE SEQUENCE ` + sequence)
}

// Submissions implements store.Inbox. For each role, it lists the oldest waiting submissions, at most as many as
// limitOfRole allows.
func (s *Store) Submissions(ctx context.Context, limitOfRole func(role string) int) (submissions []store.Submission,
	err error) {
	err = s.RunRead(ctx, func(r *reads.ReadSnapshot) error {
		for role := ""; ; {
			anothers := false
			found, err := database.ScanFirstRow(r, []any{&role, &anothers},
				`SELECT role, (SELECT count(*) FROM roles WHERE roles.role = submissions.role AND node <> ?
					AND NOT EXISTS (SELECT 1 FROM roles AS own WHERE own.role = submissions.role AND own.node = ?))
				FROM submissions WHERE refused IS NULL AND role > ? ORDER BY role LIMIT 1`, s.NodeNumber(), s.NodeNumber(), role)
			if err != nil || !found {
				return err
			}
			maxUnits := 0
			if !anothers {
				maxUnits = limitOfRole(role)
			}
			if maxUnits == 0 {
				continue
			}
			size := 0
			err = r.Query(func(r database.Row) (bool, error) {
				submissions = append(submissions, store.Submission{Number: r.Int64(0), DatabaseRole: role, JobID: r.Text(1),
					SpecJSON: []byte(r.Text(2))})
				size += len(submissions[len(submissions)-1].SpecJSON)
				return size < store.MaxListedSubmissionBytes, nil
			}, `SELECT n, id, spec FROM submissions WHERE refused IS NULL AND role = ? ORDER BY n LIMIT ?`, role,
				int64(maxUnits))
			if err != nil {
				return err
			}
		}
	})
	return submissions, err
}

// EnqueueSubmission implements engine.SharedDatabase. In one transaction it deletes a submission, and calls a
// function that enqueues its job.
func (b backend) EnqueueSubmission(t *engine.Tx, r *store.EnqueueRequest,
	enqueue func() (store.Receipt, error)) (receipt store.Receipt, err error) {
	found, err := t.QueryNumber(`SELECT count(*) FROM submissions WHERE n = ? AND refused IS NULL`, r.SubmissionNumber)
	if err != nil || found == 0 {
		return store.Receipt{IDs: []string{r.Drafts[0].ID}, Seqs: []int64{0}, Duplicate: true}, err
	}
	receipt, err = enqueue()
	if err == nil {
		err = t.Exec(`DELETE FROM submissions WHERE n = ?`, r.SubmissionNumber)
	}
	return receipt, err
}

// RejectSubmission implements store.Inbox. It marks a submission as rejected, with the reason.
func (s *Store) RejectSubmission(ctx context.Context, number int64, reason string) error {
	return s.RunAndCommit(ctx, engine.PromptClass, func(t *engine.Tx) error {
		role, err := database.QueryText(t, `UPDATE submissions SET refused = ?, spec = left(spec, ?)
			WHERE n = ? AND refused IS NULL RETURNING role`, reason, int64(maxRejectedSpecChars), number)
		if err != nil || role == "" {
			return err
		}
		return t.Exec(`DELETE FROM submissions WHERE refused IS NOT NULL AND role = ? AND n <= (SELECT n FROM submissions
			WHERE refused IS NOT NULL AND role = ? ORDER BY n DESC LIMIT 1 OFFSET ?)`,
			role, role, int64(store.MaxRejectedSubmissions))
	})
}

// SubmissionHints implements store.Inbox. The channel receives a hint when new submissions may exist, except
// while the connection is lost or if it goes through a pooler. So the receiver must also query regularly.
func (s *Store) SubmissionHints(ctx context.Context) <-chan struct{} {
	hint := make(chan struct{}, 1)
	if s.connConfig.UsesPooler { // a pooler delivers no notifications
		return hint
	}
	go keepConnected(ctx, s.connConfig, func(c *pgdb.Conn) (worked bool) {
		err := c.Listen(ctx, pgdb.SubmissionsNotifyChannel)
		worked = err == nil
		for ; err == nil; err = c.WaitForNotification(ctx) {
			queue.TrySend(hint, struct{}{})
		}
		return worked
	})
	return hint
}

var _ store.Inbox = (*Store)(nil)
