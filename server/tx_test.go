package server_test

import (
	"database/sql"
	"net/http"
)

func txNothing(http.ResponseWriter, *http.Request, *sql.Tx) error { return nil }
