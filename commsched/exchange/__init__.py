"""Building blocks of methods: phases, payloads, and a rank's end of an exchange."""
