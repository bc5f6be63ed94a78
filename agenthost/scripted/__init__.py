"""A model that plays a script: a real server of the Responses protocol that needs no key and no internet."""
