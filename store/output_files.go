package store

import "context"

// OutputFiles lists the output files that the caller must delete, because no attempt needs them any more. The
// store does not delete them, because it does not know their directories.
type OutputFiles interface {
	// DeletableOutputs lists up to limit output files whose attempts were removed.
	DeletableOutputs(ctx context.Context, limit int) ([]string, error)
	// ForgetDeletedOutputs removes files from the list of DeletableOutputs after the caller has deleted them.
	ForgetDeletedOutputs(ctx context.Context, refs []string) error
	// MarkUnownedOutputs returns those of the given output files that belong to no attempt and no lease. It adds these
	// files to the list of DeletableOutputs. It does not return files that are already in the list.
	MarkUnownedOutputs(ctx context.Context, refs []string) ([]string, error)
}
