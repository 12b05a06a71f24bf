// Package postgres measures the queue on a PostgreSQL server and compares it with other queues on
// PostgreSQL: River, graphile-worker and pg-boss. All use the same server in one run. The package is a
// separate module, so that their libraries are not dependencies of the program.
package postgres
