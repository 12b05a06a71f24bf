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

// commitsChannel is the channel for NOTIFY on which nodes notify each other of commits. The payload is the
// number of the node that has committed. A notification may be lost, so nodes also query the database
// regularly.
const commitsChannel = "queuectl_commits"

// Intervals of the communication between nodes.
const (
	notifyInterval = 10 * time.Millisecond // shortest time between two notifications that a node sends
	pollInterval   = time.Second           // shortest time between two polls; up to half of it is added at random
)

// notifyCommits sends notifications of this node's commits to the other nodes. It sends them outside of
// transactions, because a transaction with NOTIFY takes a lock that all nodes need.
func (s *Store) notifyCommits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.commitHints:
		}
		s.Notify(ctx, commitsChannel, s.Node())
		select {
		case <-ctx.Done():
			return
		case <-time.After(notifyInterval):
		}
	}
}

// listenForCommits makes this node apply the commits of other nodes soon, even if it writes nothing. The node
// can then claim new jobs and notify callers that watch jobs. It runs until ctx ends.
func (s *Store) listenForCommits(ctx context.Context) {
	var bufferedNotifications []pgconn.Notification
	config := *s.config
	config.Config = config.Config.Copy()
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		bufferedNotifications = append(bufferedNotifications, *n)
	}
	keepConnected(ctx, &config, func(c *pgdb.Conn) (worked bool) {
		bufferedNotifications = nil
		var err error
		if !config.Pooled { // a pooler forwards no notifications, so the node only queries regularly
			err = c.Listen(ctx, commitsChannel, noderequests.NotifyChannel)
		}
		worked = err == nil
		for err == nil {
			err = s.awaitNotification(ctx, c, &bufferedNotifications)
		}
		return worked
	})
}

// Pauses between attempts to reconnect after the connection for notifications was lost.
const (
	minListenRetry = time.Second // doubles up to maxListenRetry
	maxListenRetry = 30 * time.Second
)

// keepConnected connects to a server and calls useConn, which returns when the connection is lost, and
// reports whether the connection has worked. keepConnected then connects again after a pause, until ctx ends.
func keepConnected(ctx context.Context, config *pgdb.Address, useConn func(c *pgdb.Conn) (worked bool)) {
	for pause := minListenRetry; ctx.Err() == nil; pause = min(2*pause, maxListenRetry) {
		within, cancel := context.WithTimeout(ctx, pgdb.ConnectTimeout)
		c, err := pgdb.Connect(within, config)
		cancel()
		if err == nil {
			if useConn(c) {
				pause = minListenRetry
			}
			c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause)):
		}
	}
}

// awaitNotification waits for a notification, or until the next regular query. If this node may have new
// requests, it calls Wake. If other nodes may have committed, it begins a transaction, which applies their
// changes.
func (s *Store) awaitNotification(ctx context.Context, c *pgdb.Conn,
	bufferedNotifications *[]pgconn.Notification) error {
	notified := true
	if len(*bufferedNotifications) == 0 { // do not wait if notifications have already arrived with another reply
		timed, cancel := context.WithTimeout(ctx, pollInterval+rand.N(pollInterval/2))
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
		toThisNode := n.Payload == strconv.FormatInt(s.Node(), 10)
		hasRequests = hasRequests || n.Channel == noderequests.NotifyChannel && toThisNode
		hasCommits = hasCommits || n.Channel == commitsChannel && !toThisNode
	}
	if hasRequests {
		s.Wake()
	}
	if hasCommits {
		before := s.appliedCommit.Load()
		timed, cancel := context.WithTimeout(ctx, pgdb.SideConnTimeout)
		release := c.InterruptWhenDone(timed)
		newest, err := readNewestCommit(c)
		release()
		cancel()
		if err != nil {
			return err
		}
		// While a transaction is running, wait, because it may apply the changes itself.
		for s.hasMissed(newest, before) && s.InTxWithoutWaiter() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(notifyInterval):
			}
		}
		if s.hasMissed(newest, before) {
			s.Do(ctx, engine.Urgent, func(*engine.Tx) error { return nil }) // beginning a transaction applies the changes
		}
	}
	return nil
}

// HasOthers implements store.Cluster. It reports whether another node was alive at the last transaction of
// this node.
func (s *Store) HasOthers() bool { return s.HasOtherNodes() }

// hasMissed reports whether this node's cache does not reflect newest, the newest commit of the database. before is
// the commit that the cache reflected before newest was read. If the cache has not changed since, and newest is not
// that commit, the database has lost commits.
func (s *Store) hasMissed(newest commitID, before *commitID) bool {
	applied := s.appliedCommit.Load()
	return applied.number < newest.number || applied == before && *applied != newest
}

// ChangeHints implements store.Cluster. The channel receives a hint when another node may have changed
// settings or other data that all nodes share.
func (s *Store) ChangeHints() <-chan struct{} { return s.changeHints }

// Database implements store.Cluster. It returns the identifier of the database.
func (s *Store) Database() string { return s.DatabaseID() }

// NodeLeaseDuration implements store.Cluster. It returns how long a node may act without renewing its lease.
func (s *Store) NodeLeaseDuration() time.Duration { return s.nodeLeaseDuration }
