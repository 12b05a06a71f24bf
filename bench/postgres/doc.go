// Package postgres measures the queue on a PostgreSQL server. It compares the queue with three
// other queues on the same server: River, graphile-worker and pg-boss. The package is a separate
// module, so that their libraries are not dependencies of the program.
package postgres
