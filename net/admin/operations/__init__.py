"""What operators do over HTTP beyond Confluent's paths: brokers, moves, leaders, members of groups, users, voters."""
