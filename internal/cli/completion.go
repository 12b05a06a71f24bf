package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// CompleteWithin bounds how long a shell waits for completions.
const CompleteWithin = time.Second

// CompleteIDs completes the ids of jobs in these states, or in any state if states is empty. It offers
// the newest jobs first, with their commands. It offers nothing if the service does not answer, and it
// never starts a service.
func (a *App) CompleteIDs(states ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.idsIn(states, given, prefix), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// idsIn returns the ids of jobs in these states, except those in given.
func (a *App) idsIn(states, given []string, prefix string) (ids []cobra.Completion) {
	for _, j := range a.newest(states) {
		if strings.HasPrefix(j.ID, prefix) && !slices.Contains(given, j.ID) {
			ids = append(ids, cobra.CompletionWithDesc(j.ID,
				fmt.Sprintf("%s: %s", j.State, termtext.Truncate(termtext.Escape(present.Title(&j)), 60))))
		}
	}
	return ids
}

// newest returns the newest jobs in these states. It returns none if the service does not answer in
// time.
func (a *App) newest(states []string) []control.Job {
	c, err := a.Client()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), CompleteWithin)
	defer cancel()
	page, err := c.List(ctx, control.List{State: states, Limit: control.SelectStep})
	if err != nil {
		return nil
	}
	return page.Jobs
}

// completeFlags adds completion to the flags of a command, and of its subcommands, that name
// queues, nodes, batches and jobs.
func (a *App) completeFlags(cmd *cobra.Command) {
	for flag, complete := range map[string]cobra.CompletionFunc{
		"queue": a.CompleteQueues, "where-queue": a.CompleteQueues,
		"on":    a.CompleteNodes,
		"batch": a.completeBatches, "after-batch": a.completeBatches,
		"after": a.completeList, "after-any": a.completeList, "depends-on": a.completeList,
	} {
		// This call fails if the command does not have the flag, or if the flag has a completion already.
		cmd.RegisterFlagCompletionFunc(flag, complete)
	}
	for _, below := range cmd.Commands() {
		a.completeFlags(below)
	}
}

// completeList completes the last id in a list of unfinished jobs.
func (a *App) completeList(_ *cobra.Command, _ []string, typed string) (lists []cobra.Completion,
	_ cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	for _, id := range a.idsIn([]string{"waiting", "processing"}, strings.Split(before, ","), typed[len(before):]) {
		lists = append(lists, before+id)
	}
	return lists, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeBatches completes the names of the newest jobs' batches. It omits names that contain control
// characters.
func (a *App) completeBatches(_ *cobra.Command, _ []string, typed string) (names []cobra.Completion,
	_ cobra.ShellCompDirective) {
	for _, j := range a.newest(nil) {
		if name := j.Labels["batch"]; name != "" && termtext.Escape(name) == name && strings.HasPrefix(name, typed) &&
			!slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeStates completes the names of states.
func completeStates(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names := []cobra.Completion{"waiting", "done"}
	for _, s := range queue.States() {
		names = append(names, s.String())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// AllNodes reads all pages of the list of nodes.
func AllNodes(ctx context.Context, c *control.Client) (list []control.NodeView, err error) {
	for p, more := (control.Nodes{}), true; more; more = p.Cursor != "" {
		page, err := c.NodeList(ctx, p)
		if err != nil {
			return nil, err
		}
		list, p.Cursor = append(list, page.Nodes...), page.Next
	}
	return list, nil
}

// CompleteNodes completes the names of nodes.
func (a *App) CompleteNodes(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	return completeNames(a, cmd, typed, AllNodes, func(n *control.NodeView) string { return n.Name })
}

// CompleteQueues completes names of queues.
func (a *App) CompleteQueues(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	return completeNames(a, cmd, typed, func(ctx context.Context, c *control.Client) ([]control.QueueView, error) {
		list, err := c.QueueList(ctx, control.Queues{})
		return list.Queues, err
	}, func(q *control.QueueView) string { return q.Queue })
}

// completeNames completes the name of an object. The function in the parameter all returns the objects
// to choose from.
func completeNames[T any](a *App, cmd *cobra.Command, typed string,
	all func(context.Context, *control.Client) ([]T, error), name func(*T) string) (names []cobra.Completion,
	_ cobra.ShellCompDirective) {
	c, err := a.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), CompleteWithin)
	defer cancel()
	list, err := all(ctx, c)
	for i := range list {
		if text := name(&list[i]); err == nil && strings.HasPrefix(text, typed) {
			names = append(names, text)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
