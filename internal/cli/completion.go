package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// completionTimeout bounds how long a shell waits for completions.
const completionTimeout = time.Second

// A nameLister calls add for each name that it can list. The description of a name may be "".
type nameLister = func(ctx context.Context, c *control.Client, add func(name, description string))

// matchingCompletions returns the names from listNames that begin with prefix, except the names that the user has
// already typed. It returns no names if the service does not answer in time, and it never starts a service.
func (a *App) matchingCompletions(typedArgs []string, prefix string, listNames nameLister) (names []cobra.Completion) {
	c, err := a.Client()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	seen := slices.Clone(typedArgs)
	listNames(ctx, c, func(name, description string) {
		if !strings.HasPrefix(name, prefix) || slices.Contains(seen, name) {
			return
		}
		seen = append(seen, name)
		if description != "" {
			name = cobra.CompletionWithDesc(name, description)
		}
		names = append(names, name)
	})
	return names
}

// CompleteNames offers the names from listNames, in their order.
func (a *App) CompleteNames(listNames nameLister) cobra.CompletionFunc {
	return func(_ *cobra.Command, typedArgs []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.matchingCompletions(typedArgs, prefix, listNames), orderedNoFilesDirective
	}
}

// AcceptJobIDs is AcceptNames for ids of jobs. Completion offers the jobs in these states, or in any state if states is
// empty: the newest jobs first, with their commands.
func (a *App) AcceptJobIDs(cmd *cobra.Command, states ...string) {
	a.AcceptNames(cmd, "job", a.CompleteNames(jobIDLister(states...)))
}

// orderedNoFilesDirective makes the shell offer the completions in the given order, and no file names.
const orderedNoFilesDirective = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder

// jobIDLister lists the ids of jobs in these states.
func jobIDLister(states ...string) nameLister {
	return func(ctx context.Context, c *control.Client, add func(name, description string)) {
		// on an error, offer nothing
		page, _ := c.ListJobs(ctx, control.JobListParams{States: states, PageSize: control.MaxJobsPerSelection})
		for _, j := range page.Jobs {
			add(j.ID, j.State+": "+termtext.Truncate(termtext.EscapeControlCharacters(present.JobTitle(&j)), 60))
		}
	}
}

// addFlagCompletions adds completion of the values of flags to cmd and its subcommands. It covers the flags whose value
// is a queue, a node, a batch or a list of jobs.
func (a *App) addFlagCompletions(cmd *cobra.Command) {
	for flag, complete := range map[string]cobra.CompletionFunc{
		"queue": a.CompleteQueues(), "where-queue": a.CompleteQueues(), "on": a.CompleteNodes(),
		"batch": a.completeBatches(), "after-batch": a.completeBatches(),
		"after": a.completeJobIDList, "after-any": a.completeJobIDList, "depends-on": a.completeJobIDList,
	} {
		// This call fails if the command does not have the flag, or if the flag has a completion already.
		cmd.RegisterFlagCompletionFunc(flag, complete)
	}
	for _, below := range cmd.Commands() {
		a.addFlagCompletions(below)
	}
}

// completeJobIDList completes the last id in a list of ids that are separated by commas. It offers the ids of
// unfinished jobs.
func (a *App) completeJobIDList(_ *cobra.Command, _ []string, typedIDs string) (completions []cobra.Completion,
	_ cobra.ShellCompDirective) {
	before := typedIDs[:strings.LastIndexByte(typedIDs, ',')+1]
	for _, id := range a.matchingCompletions(strings.Split(before, ","), typedIDs[len(before):],
		jobIDLister("waiting", "processing")) {
		completions = append(completions, before+id)
	}
	return completions, orderedNoFilesDirective
}

// completeBatches completes the names of batches. It offers the batches of the newest jobs first, and omits
// names that contain control characters.
func (a *App) completeBatches() cobra.CompletionFunc {
	return a.CompleteNames(func(ctx context.Context, c *control.Client, add func(name, description string)) {
		page, _ := c.ListJobs(ctx, control.JobListParams{PageSize: control.MaxJobsPerSelection}) // on an error, offer nothing
		for _, j := range page.Jobs {
			if name := j.Labels["batch"]; name != "" && termtext.EscapeControlCharacters(name) == name {
				add(name, "")
			}
		}
	})
}

// stateFlagValues returns the values of the flag --state.
func stateFlagValues() []string {
	names := []string{"waiting", "done"}
	for _, s := range queue.States() {
		names = append(names, s.String())
	}
	return names
}

// CompleteNodes completes the names of nodes.
func (a *App) CompleteNodes() cobra.CompletionFunc {
	return a.CompleteNames(func(ctx context.Context, c *control.Client, add func(name, description string)) {
		list, _ := c.ListNodes(ctx, control.NodeListParams{}) // on an error, offer nothing
		for _, n := range list.Nodes {
			add(n.Name, "")
		}
	})
}

// CompleteQueues completes names of queues.
func (a *App) CompleteQueues() cobra.CompletionFunc {
	return a.CompleteNames(func(ctx context.Context, c *control.Client, add func(name, description string)) {
		list, _ := c.ListQueues(ctx, control.QueueListParams{}) // on an error, offer nothing
		for _, q := range list.Queues {
			add(q.Queue, "")
		}
	})
}
