package store

import "context"

// OutputFiles lists the output files that no attempt needs any more. The caller deletes them, because the store
// does not know their directories.
type OutputFiles interface {
	// DeletableOutputs lists up to limit output files whose attempts are gone.
	DeletableOutputs(ctx context.Context, limit int) ([]string, error)
	// ForgetDeletedOutputs removes files from the list of DeletableOutputs after the caller has deleted them.
	ForgetDeletedOutputs(ctx context.Context, refs []string) error
	// MarkUnownedOutputs returns those of the given output files that belong to no attempt and no lease, and are not
	// listed as deletable. It adds them to the list of DeletableOutputs.
	MarkUnownedOutputs(ctx context.Context, refs []string) ([]string, error)
}
