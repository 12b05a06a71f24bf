// Package copies makes copies of a program. A copy keeps running while the program itself is replaced. On
// Windows this is necessary, because the file of a running program cannot be replaced.
package copies
