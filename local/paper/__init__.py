"""The paper broker: a server that speaks the needed part of Alpaca's trading API, with its own book."""
