"""What stands in a text for what could name somebody, or lead to them."""

#: As TweetEval has them (Barbieri et al. 2020), known to models of such text.
LINK = "http"
HANDLE = "@user"
#: Ours: in brackets, which neither a handle nor a link has.
PHONE = "[phone]"
ID = "[id]"
