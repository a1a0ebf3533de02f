package server

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrLeaseLost is the cause of a handler's context that ended because
	// another process holds the key now, or may: what the handler still does
	// is done twice.
	ErrLeaseLost = errors.New("server: lease lost")

	// ErrMaxRun is the cause of a handler's context that ended because it ran
	// for [Config.MaxRun]. It matches [context.DeadlineExceeded].
	ErrMaxRun = fmt.Errorf("server: handler ran longer than MaxRun: %w", context.DeadlineExceeded)

	// ErrShutdown is the cause of a handler's context that was cancelled at the
	// end of [Middleware.Shutdown].
	ErrShutdown = errors.New("server: shutting down")

	// ErrStreamingInTx is what Flush and Hijack return below
	// [Middleware.WrapTx]: nothing may leave before the commit.
	ErrStreamingInTx = errors.New("server: a response can't be streamed in a transaction")

	// ErrNotFound is matched by the error of [Middleware.Settle] for a key that
	// has no record.
	ErrNotFound = errors.New("server: no such key")

	// ErrRunning is matched by the error of [Middleware.Settle] and
	// [Middleware.Forget] for a key that runs.
	ErrRunning = errors.New("server: the operation is running")

	// ErrSettled is matched by the error of [Middleware.Settle] for a key that
	// has its result.
	ErrSettled = errors.New("server: the operation has its result")

	// errLost says that the hold is somebody else's now.
	errLost = errors.New("server: the key has another owner")

	// errAfterReturn is what a Write gets that comes when the response is
	// closed.
	errAfterReturn = errors.New("server: write after the handler returned")

	// errNotRecorded is what a Write gets whose bytes were to leave, and the
	// record could not be completed before them.
	errNotRecorded = errors.New("server: the result could not be recorded, so nothing was sent")
)
