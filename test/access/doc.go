// Package access checks from outside which users may do what, and that no user can harm another one.
package access
