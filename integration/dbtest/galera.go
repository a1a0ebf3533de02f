package dbtest

import (
	"fmt"
	"strconv"
)

// soon has nodes find each other again, and look whether they are there, more
// often than is their way.
const soon = "gmcast.time_wait=PT0.5S;evs.inactive_check_period=PT0.2S"

// NewGalera makes a cluster of MariaDB servers. They have to be started one
// after the other, in this order.
func NewGalera(nodes int) ([]*Server, error) {
	provider, err := find("/usr/lib/galera/libgalera_smm.so", "/usr/lib/*/galera*/libgalera_smm.so", "/usr/lib64/galera*/libgalera_smm.so")
	if err != nil {
		return nil, err
	}
	var cluster []*Server
	var first int
	for i := range nodes {
		var ports [3]int // of the group, and of the transfers of state
		for j := range ports {
			if ports[j], err = freePort(); err != nil {
				return cluster, err
			}
		}
		address := "gcomm://"
		if i == 0 {
			first = ports[0]
		} else {
			address += local(first)
		}
		s, err := NewMariaDB("--wsrep-on=ON", "--wsrep-provider="+provider, "--wsrep-cluster-address="+address,
			"--wsrep-node-address=127.0.0.1", "--wsrep-node-name=node"+strconv.Itoa(i),
			fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://%s;ist.recv_addr=%s;gcache.size=16M;"+soon, local(ports[0]), local(ports[1])),
			"--wsrep-sst-method=rsync", "--wsrep-sst-receive-address="+local(ports[2]),
			"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2")
		if err != nil {
			return cluster, err
		}
		cluster = append(cluster, s)
	}
	return cluster, nil
}
