package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/noderequests"
	"github.com/queuectl/queuectl/store/pgdb"
)

// commitsNotifyChannel is the channel for NOTIFY on which nodes notify each other of commits. The payload is the
// number of the node that has committed. A notification may be lost, so nodes also query the database
// regularly.
const commitsNotifyChannel = "queuectl_commits"

// Intervals of the communication between nodes.
const (
	minNotifyInterval = 10 * time.Millisecond // shortest time between two notifications that a node sends
	minPollInterval   = time.Second           // shortest time between two polls; up to half of it is added at random
)

// notifyNodesOfCommits sends notifications of this node's commits to the other nodes. It sends the notifications
// outside of transactions, because a transaction with NOTIFY takes a lock that all nodes need.
func (s *Store) notifyNodesOfCommits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.notifyCommitHints:
		}
		s.NotifyNodes(ctx, commitsNotifyChannel, s.NodeNumber())
		select {
		case <-ctx.Done():
			return
		case <-time.After(minNotifyInterval):
		}
	}
}

// listenForCommits makes this node apply the commits of other nodes soon, even if it writes nothing. The node
// can then claim new jobs and notify callers that watch jobs. It runs until ctx ends.
func (s *Store) listenForCommits(ctx context.Context) {
	var bufferedNotifications []pgconn.Notification
	config := *s.connConfig
	config.Config = config.Config.Copy()
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		bufferedNotifications = append(bufferedNotifications, *n)
	}
	keepConnected(ctx, &config, func(c *pgdb.Conn) (worked bool) {
		bufferedNotifications = nil
		var err error
		if !config.UsesPooler { // a pooler forwards no notifications, so the node only queries regularly
			err = c.Listen(ctx, commitsNotifyChannel, noderequests.RequestsNotifyChannel)
		}
		worked = err == nil
		for err == nil {
			err = s.awaitNotificationOrPoll(ctx, c, &bufferedNotifications)
		}
		return worked
	})
}

// Pauses between attempts to reconnect after the connection for notifications was lost.
const (
	minReconnectPause = time.Second // doubles up to maxReconnectPause
	maxReconnectPause = 30 * time.Second
)

// keepConnected connects to a server and calls useConn, which returns when the connection is lost, and
// reports whether the connection has worked. keepConnected then connects again after a pause, until ctx ends.
func keepConnected(ctx context.Context, config *pgdb.ConnConfig, useConn func(c *pgdb.Conn) (worked bool)) {
	for pause := minReconnectPause; ctx.Err() == nil; pause = min(2*pause, maxReconnectPause) {
		within, cancel := context.WithTimeout(ctx, pgdb.ConnectTimeout)
		c, err := pgdb.Connect(within, config)
		cancel()
		if err == nil {
			if useConn(c) {
				pause = minReconnectPause
			}
			c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause)):
		}
	}
}

// awaitNotificationOrPoll waits for a notification, or until the next regular query. If this node may have new
// requests, it calls WakeReceivers. If other nodes may have committed, it begins a transaction, which applies their
// changes.
func (s *Store) awaitNotificationOrPoll(ctx context.Context, c *pgdb.Conn,
	bufferedNotifications *[]pgconn.Notification) error {
	notified := true
	if len(*bufferedNotifications) == 0 { // do not wait if notifications have already arrived with another reply
		timed, cancel := context.WithTimeout(ctx, minPollInterval+rand.N(minPollInterval/2))
		defer cancel()
		err := c.WaitForNotification(timed)
		notified = err == nil
		if err != nil && timed.Err() == nil || ctx.Err() != nil || c.IsClosed() {
			return errors.Join(err, ctx.Err())
		}
	}
	notifications := *bufferedNotifications
	*bufferedNotifications = nil
	hasRequests, hasCommits := !notified, !notified
	for _, n := range notifications {
		toThisNode := n.Payload == strconv.FormatInt(s.NodeNumber(), 10)
		hasRequests = hasRequests || n.Channel == noderequests.RequestsNotifyChannel && toThisNode
		hasCommits = hasCommits || n.Channel == commitsNotifyChannel && !toThisNode
	}
	if hasRequests {
		s.WakeReceivers()
	}
	if hasCommits {
		before := s.lastAppliedCommit.Load()
		timed, cancel := context.WithTimeout(ctx, pgdb.ReconnectingConnTimeout)
		release := c.InterruptWhenDone(timed)
		newest, err := readNewestCommit(c)
		release()
		cancel()
		if err != nil {
			return err
		}
		// While a transaction is running, wait, because it may apply the changes itself.
		for s.cacheLacksCommit(newest, before) && s.InTxWithoutClaimWaiter() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(minNotifyInterval):
			}
		}
		if s.cacheLacksCommit(newest, before) {
			// beginning a transaction applies the changes
			s.RunAndCommit(ctx, engine.UrgentClass, func(*engine.Tx) error { return nil })
		}
	}
	return nil
}

// HasOtherActiveNodes implements store.Cluster. It reports whether another node was alive at the last transaction of
// this node.
func (s *Store) HasOtherActiveNodes() bool { return s.HasOtherNodes() }

// cacheLacksCommit reports whether this node's cache does not reflect newest, the newest commit of the database.
// lastCachedCommit is the commit that the cache reflected before newest was read. If the cache has not changed since,
// and newest is not that commit, the database has lost commits.
func (s *Store) cacheLacksCommit(newestCommit commitID, lastCachedCommit *commitID) bool {
	applied := s.lastAppliedCommit.Load()
	return applied.commitNumber < newestCommit.commitNumber || applied == lastCachedCommit && *applied != newestCommit
}

// SharedDataChangeHints implements store.Cluster. The channel receives a hint when another node may have changed
// settings or other data that all nodes share.
func (s *Store) SharedDataChangeHints() <-chan struct{} { return s.sharedChangeHints }

// DatabaseIdentifier implements store.Cluster. It returns the identifier of the database.
func (s *Store) DatabaseIdentifier() string { return s.DatabaseID() }

// NodeLeaseDuration implements store.Cluster. It returns how long a node may act without renewing its lease.
func (s *Store) NodeLeaseDuration() time.Duration { return s.nodeLeaseDuration }
