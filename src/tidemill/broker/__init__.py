"""What a broker is made of, and how a request finds its handler."""
